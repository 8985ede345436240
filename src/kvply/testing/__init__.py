"""Shipped to others: conformance suites, fault wrappers, process helpers and tiny models."""
