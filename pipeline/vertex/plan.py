"""Whether the training fits its window on the machines of the settings, by what the newest recorded training measured."""

from pipeline import typed, window
from pipeline.errors import PipelineError
from pipeline.places import Places
from pipeline.release import profiles
from pipeline.settings import Settings


def judge(settings: Settings, profile: str | None = None, prices: str = str(window.PRICES)) -> tuple[str, bool]:
    """Plans the training of the settings.

    Args:
        settings: The settings, with `vertex`.
        profile: The training.json to plan with; None for that of the newest run in the store.
        prices: The price list, which holds the assumed efficiencies.

    Returns:
        What people are told, and whether it fits. Without any recorded training nothing is planned, which is said.

    Raises:
        PipelineError: The record cannot be used.
    """
    if not settings.vertex.window_hours:
        return "not planned: vertex.window_hours is 0, so there is no window", True
    if profile is None:
        try:
            newest = profiles.find(Places(store=settings.vertex.store).newest_profile)
        except PipelineError as error:
            raise PipelineError(f"{error}. Or name a training.json by --profile") from error
        if newest is None:
            return f"not planned: no training is recorded in {settings.vertex.store} yet, and --profile names none", True
        profile = newest.training
    measured = window.read_profile(profile).figures
    efficiencies = typed.load(window.Prices, prices).efficiencies
    job, workers, training = settings.vertex.training, settings.training.workers, settings.training
    gpus = workers * max(job.gpus, 1)
    if gpus == 1:
        efficiency = 1.0
    elif workers == 1:
        efficiency = efficiencies.nvlink.value
    elif job.reduction_server:
        efficiency = efficiencies.reduction_server.value
    else:
        efficiency = efficiencies.between_nodes.value
    decode = measured["decode_share"] * measured["epoch_hours"]
    compute = measured["epoch_hours"] - decode
    frozen_cost = measured.get("frozen_cost", window.Figures().frozen_cost)
    full, frozen = (
        window.epoch_hours(compute, decode, workers=gpus, efficiency=efficiency, cost=cost) for cost in (1, frozen_cost)
    )
    hours = training.unfrozen_epochs * full + training.frozen_epochs * frozen
    left = settings.vertex.window_hours - training.reserve_minutes / 60
    fits = hours <= left
    budget = window.Budget(training.frozen_epochs, training.unfrozen_epochs)
    told = (
        f"planned with {profile}: {budget} on {workers} x {job.machine} take {hours:.1f} h, and the window of "
        f"{settings.vertex.window_hours:g} h leaves {left:.1f} h for training: {'it fits' if fits else 'it does not fit'}"
    )
    return told, fits
