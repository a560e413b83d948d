"""The manager: a pure state machine over the run's logs (``state``, ``step``) and its thin driver (``manager``)."""
