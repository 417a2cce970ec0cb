"""Pictures, as SVG text with no library behind them."""
