"""Private interfaces of Optuna. Written for Optuna 5.0."""

from optuna import Study, Trial
from optuna.trial import FrozenTrial


def continued(study: Study, trial: FrozenTrial) -> Trial:
    """Return a running trial of an earlier process, so that it can be continued.

    Optuna has no public way to do this. Without the private attribute, the trial that a killed search was training
    could not go on: it would have to be entered as a failure, and again as a new trial.
    """
    return Trial(study, trial._trial_id)
