(() => {
  const data = JSON.parse(document.getElementById("curves").textContent);
  const unit = (v, steps) => {
    const [f, u] = steps.find(([f]) => Math.abs(v) >= f * 0.9995) || steps[steps.length - 1];
    return `${Number((v / f).toPrecision(3))} ${u}`;
  };
  const words = {
    time: (v) => v >= 120 ? `${(v / 60).toFixed(1)} min` : unit(v, [[1, "s"], [1e-3, "ms"], [1e-6, "µs"]]),
    steps: (v) => `step ${Math.round(v)}`,
    bytes: (v) => v < 1 ? "0 B" : unit(v, [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]),
    accuracy: (v) => `${(100 * v).toFixed(1)} %`,
    loss: (v) => v.toPrecision(3),
  };
  // The mean at x by straight lines between points; nothing outside of what was measured.
  const at = (xs, ys, x) => {
    if (xs[0] === xs[xs.length - 1]) return ys[ys.length - 1];
    if (x < xs[0] || x > xs[xs.length - 1]) return null;
    const i = Math.max(1, xs.findIndex((v) => v >= x));
    const share = xs[i] > xs[i - 1] ? (x - xs[i - 1]) / (xs[i] - xs[i - 1]) : 1;
    return ys[i - 1] + share * (ys[i] - ys[i - 1]);
  };
  for (const figure of document.querySelectorAll("[data-chart]")) {
    const chart = data[figure.dataset.chart];
    const g = JSON.parse(figure.dataset.geometry);
    const svg = figure.querySelector("svg");
    const cursor = svg.querySelector(".cursor");
    const tip = document.createElement("div");
    tip.className = "tip";
    tip.hidden = true;
    figure.parentElement.append(tip);
    const hide = () => { tip.hidden = true; cursor.setAttribute("hidden", "hidden"); };
    svg.addEventListener("pointermove", (event) => {
      const box = svg.getBoundingClientRect();
      const px = (event.clientX - box.left) * g.width / box.width;
      if (px < g.left || px > g.right) return hide();
      const share = (px - g.left) / (g.right - g.left);
      const x = g.log ? g.low * (g.high / g.low) ** share : g.low + share * (g.high - g.low);
      const rows = chart.series
        .map((s) => [s.label, at(s.x, s.y, x)])
        .filter(([, y]) => y !== null)
        .sort((a, b) => chart.metric === "loss" ? a[1] - b[1] : b[1] - a[1]);
      if (!rows.length) return hide();
      const table = document.createElement("table");
      for (const [label, y] of [[words[chart.axis](x), null], ...rows]) {
        const row = table.insertRow();
        row.insertCell().textContent = label;
        row.insertCell().textContent = y === null ? "" : words[chart.metric](y);
      }
      tip.replaceChildren(table);
      tip.hidden = false;
      const left = event.clientX - box.left;
      tip.style.left = left > box.width / 2 ? "auto" : `${left + 16}px`;
      tip.style.right = left > box.width / 2 ? `${box.width - left + 16}px` : "auto";
      tip.style.top = `${Math.round(box.height * 0.36)}px`;
      cursor.setAttribute("x1", px);
      cursor.setAttribute("x2", px);
      cursor.removeAttribute("hidden");
    });
    svg.addEventListener("pointerleave", hide);
  }
  addEventListener("beforeprint", () => {
    for (const each of document.querySelectorAll("details.printed")) each.open = true;
  });
})();
