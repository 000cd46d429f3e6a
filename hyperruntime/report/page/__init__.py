"""One file of HTML about a run: what its files say, and the page that shows it, offline."""
