"""The sandbox provider ``hyperruntime`` of inspect_ai, found by its entry point
(docs/integrations/inspect_ai.md).
"""
