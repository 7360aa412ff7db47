"""What can go wrong in training and can be mended by a person."""


class TrainingError(Exception):
    """Settings, data or a machine that training cannot use as they are.

    The text says what was wrong, with the value, and what to do next.
    """
