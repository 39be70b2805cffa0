"""From settings to runs: the only place where everything is wired together."""
