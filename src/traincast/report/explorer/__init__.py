"""``report.html``: a step to explore in a browser, one file that asks nothing of any network.

`columns` says what the page is given, `page` writes it; its scripts and styles are in ``data/explorer``.
"""
