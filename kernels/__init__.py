"""Parameterized Triton kernels, and what a kernel is."""
