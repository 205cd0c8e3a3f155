"""One self-contained HTML page, which `page.render_page` writes."""
