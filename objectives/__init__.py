"""Compile, verify, measure, replay: from a kernel to an Optuna objective."""
