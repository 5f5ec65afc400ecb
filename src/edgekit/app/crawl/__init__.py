"""`index build`: an index of the repositories of a hub. `build.build` runs it.

1. listing.py: the hub's listing, page by page, each repository as a `Listed`
2. files.py: the file lists of repositories whose sizes the listing does not state (one request each)
3. plan.py: which repositories are quantisations of which model, as their publishers state it; one geometry per model
4. geometry.py: the config.json, or one GGUF header, of each model
5. rows.py: the tables of the index

Everything that was fetched is in the journal (journal.py) before the next step reads it, so a crawl that was killed
continues where it stopped, and the tables depend only on what the hub answered.
"""
