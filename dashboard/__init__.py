"""The Streamlit dashboard: a thin client of the store and of the command line. Never imports torch."""
