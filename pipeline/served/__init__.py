"""Drift of what is served: do requests still look like what the model that serves was trained on?"""
