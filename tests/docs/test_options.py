"""The lists and tables of options are correct: each name and default of tfdpg is as written."""

import ast
import inspect
import re

import pytest

import tfdpg
from tests.docs.pages import PAGES, ROOT, module, prose, table
from tfdpg.agents.options import OPTIONS
from tfdpg.distributed.options import Distribution
from tfdpg.options import Search, Structural, options_of

CALLABLES = {
    "TD3": tfdpg.TD3.__init__,
    "TD7": tfdpg.TD7.__init__,
    "DDPG": tfdpg.DDPG.__init__,
    "D4PG": tfdpg.D4PG.__init__,
    "ACER": tfdpg.ACER.__init__,
    "fit": tfdpg.TD3.fit,
    "distributed.fit": tfdpg.distributed.fit,
    "fit_offline": tfdpg.TD3.fit_offline,
    "evaluate": tfdpg.TD3.evaluate,
    "ScalarWriter": tfdpg.callbacks.ScalarWriter.__init__,
    "EpochLogger": tfdpg.callbacks.EpochLogger.__init__,
    "Checkpoint": tfdpg.callbacks.Checkpoint.__init__,
    "ExportBest": tfdpg.callbacks.ExportBest.__init__,
    "StopAtReturn": tfdpg.callbacks.StopAtReturn.__init__,
    "act": tfdpg.TD3.act,
    "predict": tfdpg.TD3.predict,
    "export": tfdpg.TD3.export,
}
SPINNING_UP = (
    "env_fn actor_critic ac_kwargs seed steps_per_epoch epochs replay_size gamma polyak pi_lr q_lr batch_size "
    "start_steps update_after update_every act_noise target_noise noise_clip policy_delay num_test_episodes "
    "max_ep_len logger_kwargs save_freq"
).split()
MATLAB = (
    "rlTD3Agent rlContinuousDeterministicActor rlQValueFunction NumHiddenUnit UseRNN lstmLayer DiscountFactor "
    "MiniBatchSize ExperienceBufferLength NumWarmStartSteps LearningFrequency NumEpoch MaxMiniBatchPerEpoch "
    "SequenceLength NumStepsToLookAhead PolicyUpdateFrequency TargetUpdateFrequency TargetSmoothFactor "
    "rlPrioritizedReplayMemory PriorityExponent InitialImportanceSamplingExponent NumAnnealingSteps "
    "BatchDataRegularizerOptions ExplorationModel StandardDeviation StandardDeviationDecayRate "
    "StandardDeviationMin MeanAttractionConstant TargetPolicySmoothModel LowerLimit UpperLimit "
    "StandardDeviationDecayRate StandardDeviationMin ActorOptimizerOptions CriticOptimizerOptions LearnRate "
    "GradientDecayFactor GradientThreshold L2RegularizationFactor train MaxEpisodes MaxStepsPerEpisode "
    "StopTrainingCriteria StopTrainingValue ScoreAveragingWindowLength SaveAgentCriteria SaveAgentValue "
    "SaveAgentDirectory UseParallel Verbose Plots rlEvaluator trainFromData sim NumSimulations MaxSteps getAction "
    "UseExplorationPolicy generatePolicyFunction"
).split()
SKRL = (
    "models memory observation_space device gradient_steps batch_size discount_factor polyak actor_learning_rate "
    "critic_learning_rate learning_rate learning_rate_scheduler state_preprocessor observation_preprocessor "
    "random_timesteps learning_starts grad_norm_clip noise exploration_noise initial_scale final_scale timesteps "
    "exploration_scheduler rewards_shaper write_interval checkpoint_interval RNN GRU LSTM hidden_size num_layers "
    "sequence_length"
).split()
STABLE_BASELINES3 = (
    "policy env learning_rate buffer_size learning_starts batch_size tau gamma train_freq gradient_steps "
    "action_noise n_steps goal_selection_strategy n_sampled_goal policy_delay target_policy_noise "
    "target_noise_clip seed device net_arch activation_fn "
    "optimizer_class n_critics features_extractor_class total_timesteps callback verbose progress_bar eval_env "
    "n_eval_episodes eval_freq save_freq norm_obs clip_obs epsilon"
).split()
TF_AGENTS = (
    "time_step_spec action_spec actor_network critic_network critic_network_2 fc_layer_params activation_fn "
    "lstm_size actor_optimizer critic_optimizer exploration_noise_std target_update_tau target_update_period "
    "actor_update_period gamma reward_scale_factor target_policy_noise target_policy_noise_clip gradient_clipping "
    "max_length sample_batch_size initial_collect_steps collect_steps_per_iteration num_iterations "
    "num_eval_episodes eval_interval"
).split()
ACME = (
    "environment_spec policy_network critic_network observation_network policy_layer_sizes critic_layer_sizes "
    "vmin vmax num_atoms sigma target_update_period samples_per_insert samples_per_insert_tolerance_rate n_step "
    "discount batch_size learning_rate policy_optimizer critic_optimizer clipping min_replay_size max_replay_size "
    "num_sgd_steps_per_step variable_update_period policy_learning_rate critic_learning_rate "
    "policy_gradient_clipping delay target_sigma noise_clip tau bc_alpha"
).split()
KERAS_RL = (
    "nb_actions actor critic gamma batch_size nb_steps_warmup_critic nb_steps_warmup_actor train_interval "
    "random_process theta sigma sigma_min n_steps_annealing target_model_update limit processor optimizer "
    "nb_steps callbacks verbose log_interval nb_max_episode_steps nb_episodes"
).split()
MAPPINGS = {
    "docs/migrating/spinning-up.md": ("Spinning Up", "TD3", SPINNING_UP),
    "docs/migrating/matlab.md": ("MATLAB", "TD3", MATLAB),
    "docs/migrating/skrl.md": ("skrl", "DDPG", SKRL),
    "docs/migrating/stable-baselines3.md": ("Stable-Baselines3", "TD3", STABLE_BASELINES3),
    "docs/migrating/tf-agents.md": ("TF-Agents", "TD3", TF_AGENTS),
    "docs/migrating/acme.md": ("Acme", "D4PG", ACME),
    "docs/migrating/keras-rl.md": ("keras-rl", "DDPG", KERAS_RL),
}
"""The library of a page, the agent to which options without a function belong, and the library's options, in order."""
WITHOUT_COUNTERPART = {
    "docs/migrating/matlab.md": "SampleTime InfoToSave ResetExperienceBufferBeforeTraining StopOnError".split(),
    "docs/migrating/skrl.md": "directory experiment_name store_separately wandb wandb_kwargs".split(),
}
"""Options of the source documents that a page lists below its tables."""
SYMBOLS = {"docs/algorithms/d4pg.md": "D4PG", "docs/algorithms/acer.md": "ACER"}
GENERATED = {
    "docs/options/td3.md": "TD3",
    "docs/options/ddpg.md": "DDPG",
    "docs/options/d4pg.md": "D4PG",
    "docs/options/td7.md": "TD7",
    "docs/options/acer.md": "ACER",
    "docs/options/fit.md": "fit",
    "docs/cluster.md": "distributed.fit",
}
options = module("docs/option_tables.py")


def mapped(page):
    """Return the rows of all tables of a page that map the options of a library, as lists of cells."""
    sections = prose(page).split(f"| {MAPPINGS[page][0]} | tfdpg | remarks |\n|---|---|---|\n")
    rows = [line for section in sections[1:] for line in section.split("\n\n")[0].splitlines()]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in rows]


@pytest.mark.parametrize("page", MAPPINGS)
def test_every_option_of_the_source_documents_is_mapped(page):
    found = [name for row in mapped(page) for name in re.findall(r"`(\w+)(?:=[^`]+)?`", row[0])]
    assert found == MAPPINGS[page][2]
    listed = " ".join(line for line in PAGES[page].splitlines() if line.startswith("- "))
    assert set(WITHOUT_COUNTERPART.get(page, [])) <= set(re.findall(r"\w+", listed))


@pytest.mark.parametrize("page", MAPPINGS)
def test_every_name_and_default_of_tfdpg_is_as_written(page):
    """Such as `fit(steps_per_epoch=4000)`, `gamma=0.99` for an option of the page's agent, or `env` without default."""
    checked = 0
    for theirs, ours, _ in mapped(page):
        spans = re.findall(r"`([^`]+)`", ours)
        assert spans, theirs
        for span in spans:
            call = re.fullmatch(r"([\w.]+)\((.+)\)", span)
            function, argument = call.groups() if call else (MAPPINGS[page][1], span)
            name, _, value = argument.partition("=")
            default = inspect.signature(CALLABLES[function]).parameters[name].default
            if value:
                assert ast.literal_eval(value) == default, f"{span}, but the default is {default}"
                checked += 1
            else:
                assert default in (inspect.Parameter.empty, None), f"{span} has the default {default}"
    assert checked >= 20


@pytest.mark.parametrize("page", SYMBOLS)
def test_every_option_beside_a_symbol_exists(page):
    rows = table(page, SYMBOLS[page])
    for row in rows:
        names = re.findall(r"([\w.]+)\((\w+)\)", row[1])
        assert names and all(argument in inspect.signature(CALLABLES[name]).parameters for name, argument in names), row
    assert len(rows) >= 20


@pytest.mark.parametrize("page", GENERATED)
def test_every_option_is_in_the_list_of_its_page_with_its_default_and_help(page):
    name = GENERATED[page]
    assert f"<!-- options: {name} -->" in PAGES[page]
    assert options.page_with_lists(ROOT / page) == PAGES[page], "run python docs/option_tables.py"
    found = options.options(name)
    parameters = inspect.signature(CALLABLES[name]).parameters
    skipped = {"self", "env"}
    expected = [one for one in parameters if one not in skipped]
    if name == "distributed.fit":
        expected = [option.name for option in options_of(Distribution)]
    assert sorted(option.name for option in found) == sorted(expected)
    for option in found:
        assert option.help and option.type
        default = parameters[option.name].default
        empty = default is inspect.Parameter.empty
        assert option.default == "" if empty else ast.literal_eval(option.default) == default
    groups = [option.group for option in found]
    assert [group for i, group in enumerate(groups) if group not in groups[:i]] == [
        group for i, group in enumerate(groups) if i == 0 or group != groups[i - 1]
    ]


def test_types_and_defaults_are_readable():
    rows = {option.name: option for option in options.options("TD3")}
    assert rows["update_every"].type == 'a positive integer or "episode"' and rows["pi"].type == "keras.Model | None"
    assert rows["replay_size"].default == "1_000_000" and rows["noise"].default == '"gaussian"'
    assert rows["gamma"].kind == "a finite number in [0, 1], default `0.99`"
    required = options.Option("", "x", "an integer", "", f"a number | `a`, {'x' * 99}, of shape `[batch, n]`.")
    first, second = options.item(required).splitlines()
    assert first.startswith("- `x` (an integer): a number | `a`,") and second == "  `[batch, n]`."


def test_the_lists_say_what_an_option_requires_and_whether_it_can_change():
    helps = {option.name: option.help for option in options.options("D4PG")}
    assert helps["alpha"].endswith(' Requires `replay="prioritized"` or `replay="lap"`.')
    assert helps["normalize_epsilon"].endswith(" Requires `normalize_observations=True`.")
    ending = ' Requires `critic="categorical"`, and `q1=None`. Cannot be changed in a saved agent.'
    assert helps["atoms"].endswith(ending)
    assert helps["burn_in"].endswith(" Requires `recurrent` other than `None`.")
    fixed = {name for name, text in helps.items() if text.endswith("Cannot be changed in a saved agent.")}
    assert fixed == set(OPTIONS["D4PG"].names(Structural))


def test_the_lists_of_the_reference_have_every_option():
    """Those of functions whose options are on no page of their own, or only in part."""
    for name, function in {"fit_offline": tfdpg.TD3.fit_offline, "export": tfdpg.TD3.export}.items():
        assert CALLABLES.get(name, function) is function
        found = [option.name for option in options.options(name, options.KINDS)]
        assert sorted(found) == sorted(option.name for option in options_of(function.options_class))
    found = [option.name for option in options.options("distributed.fit", options.KINDS)]
    assert set(found) == set(inspect.signature(tfdpg.distributed.fit).parameters) - {"agent", "make_env"}
    assert {title for title, _ in options.groups(options.options("TD3"))} <= set(options.TITLES.values()) | {
        "Algorithm",
        "Networks",
    }


def test_the_table_of_search_ranges_is_as_declared():
    ranges = {}
    for agent in OPTIONS:
        for option in options_of(OPTIONS[agent]):
            if isinstance(option.search, Search):
                text = f"{option.search.low:g} to {option.search.high:g}", option.search.scale
            elif option.search is not None:
                values = [" ".join(map(str, v)) if isinstance(v, tuple) else str(v) for v in option.search.values]
                text = ", ".join(values), ""
            else:
                continue
            ranges.setdefault((option.name, *text), []).append(agent)
    listed = [tuple(cell.strip() for cell in row) for row in table("docs/tuning.md", "option")]
    expected = []
    for (name, *text), agents in sorted(ranges.items()):
        of = f" ({', '.join(agents)})" if len(agents) < 3 else ""
        expected.append((f"`{name}`{of}", *text))
    assert listed == expected
