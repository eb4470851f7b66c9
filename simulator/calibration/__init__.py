"""From measured tables to the constants of the cost model, with the error on rows that nothing was fitted on."""
