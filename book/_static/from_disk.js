// Opened from disk, a page may not fetch others, so the search lists its hits without excerpts.
if (location.protocol === "file:") DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;
