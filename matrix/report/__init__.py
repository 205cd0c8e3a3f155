"""One self-contained HTML page, which `page.render_page` writes, and the text file of a first run."""
