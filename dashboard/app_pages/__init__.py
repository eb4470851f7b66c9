"""Pages of the dashboard, registered by `dashboard/app.py`."""
