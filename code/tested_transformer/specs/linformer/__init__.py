"""The Spec of Linformer attention."""
