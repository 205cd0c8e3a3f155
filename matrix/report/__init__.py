"""One self-contained HTML page: `page.render_page` writes it, the other modules collect its data."""
