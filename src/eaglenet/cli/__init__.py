"""The `eaglenet` command."""
