"""Evaluators: judges, hint givers and teachers, which claim work from `evaluations` and write what they find."""
