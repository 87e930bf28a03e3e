"""The magics: `%%chat` and its line commands."""
