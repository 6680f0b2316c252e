"""Measurements of ours beside what a user would pick instead, in one run. Nothing here is imported by the product."""
