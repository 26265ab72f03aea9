"""Research beside the product: analyses, studies, benchmarks. Nothing outside imports it."""
