from IPython.display import clear_output
