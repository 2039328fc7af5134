"""The Specs of what is new in Whisper's encoder, and its famous mistakes."""
