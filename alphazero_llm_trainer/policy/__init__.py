"""Policies: the engine protocol and what implements it."""
