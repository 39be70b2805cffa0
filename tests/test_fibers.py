"""Fibres: suspend and resume, torch's hidden state, the refusal inside backward."""

from __future__ import annotations

import pytest
import torch

from thinwire.errors import WaitInBackwardError
from thinwire.fibers import Fiber, ThreadFiber, pause

BOTH = pytest.mark.parametrize("kind", [Fiber, ThreadFiber])


@BOTH
def test_a_program_goes_on_where_it_paused_with_what_it_is_given(kind):
    seen = []

    def program():
        seen.append("begin")
        seen.append(pause())
        seen.append(pause())

    fiber = kind(program)
    assert fiber.alive
    fiber.resume()
    fiber.resume("first")
    fiber.resume("second")
    assert seen == ["begin", "first", "second"]
    assert not fiber.alive


@BOTH
def test_an_exception_comes_out_of_resume(kind):
    def program():
        pause()
        raise KeyError("inside")

    fiber = kind(program)
    fiber.resume()
    with pytest.raises(KeyError, match="inside"):
        fiber.resume()
    assert not fiber.alive


@BOTH
def test_killing_a_program_runs_its_finally_blocks(kind):
    seen = []

    def program():
        try:
            pause()
        finally:
            seen.append("cleaned up")

    fiber = kind(program)
    fiber.resume()
    fiber.kill()
    assert seen == ["cleaned up"]
    assert not fiber.alive


@BOTH
def test_many_programs_interleave_alike_on_both_kinds(kind):
    seen = []

    def program(name):
        def run():
            for i in range(3):
                seen.append((name, i))
                pause()

        return run

    fibers = [kind(program(name)) for name in "abc"]
    while any(f.alive for f in fibers):
        for fiber in fibers:
            if fiber.alive:
                fiber.resume()
    assert seen == [(name, i) for i in range(3) for name in "abc"]


@BOTH
def test_grad_mode_and_autocast_stay_with_their_program(kind):
    seen = []

    def quiet():
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
            pause()
            seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))

    def plain():
        pause()
        seen.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu")))

    fibers = [kind(quiet), kind(plain)]
    for _ in range(2):
        for fiber in fibers:
            fiber.resume()
            assert torch.is_grad_enabled()
            assert not torch.is_autocast_enabled("cpu")
    assert seen == [(False, True), (True, False)]


def test_pausing_inside_backward_is_refused():
    raised = []

    def hook(grad):
        try:
            pause()
        except WaitInBackwardError as error:
            raised.append(str(error))

    def program():
        x = torch.ones(1, requires_grad=True)
        x.register_hook(hook)
        (x * 2).sum().backward()

    Fiber(program).resume()
    assert len(raised) == 1
    assert "post, start and spend" in raised[0].replace("post, start\nand", "post, start and")
