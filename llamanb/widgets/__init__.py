"""Widgets: views on a session, and the bridge to the open document."""
