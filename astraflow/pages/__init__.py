"""What a person sees of a run: pictures, the live Markdown page and one HTML file, all drawn from its store."""
