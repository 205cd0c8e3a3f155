"""One HTML page without other files: `page.render_page` writes it, the other modules collect its data."""
