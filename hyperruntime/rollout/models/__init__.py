"""Clients of model servers, each a :class:`~hyperruntime.rollout.model.Model`."""
