"""History to and from JSON: the schema, saved sessions and notebooks."""
