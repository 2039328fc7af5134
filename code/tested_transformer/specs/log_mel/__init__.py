"""Whisper's front end: what is right, and the famous mistakes."""
