"""The public names of fedrows: what the API reference documents, page by page.

A name is public if `fedrows.__all__` has it, or if a page of docs/ or an example imports it. The
rest of the package may change without notice. `tests/test_site.py` checks both directions.
"""

from typing import NamedTuple


class Chapter(NamedTuple):
    """One page of the reference."""

    title: str
    summary: str
    names: tuple[str, ...]

    @property
    def page(self) -> str:
        return f"reference/{self.title.lower().replace(' ', '-')}.md"


CHAPTERS = (
    Chapter(
        "Training",
        "Train a module on a federation, in one call or round by round.",
        (
            "fedrows.simulate",
            "fedrows.notebook.simulate.Result",
            "fedrows.Simulation",
            "fedrows.Plan",
            "fedrows.with_personal",
            "fedrows.lifting.lifted.Lifted",
            "fedrows.lifting.adapt.adapt",
            "fedrows.lifting.adapt.with_rows",
            "fedrows.nn.initial_values.start_",
            "fedrows.version.__version__",
        ),
    ),
    Chapter(
        "Data",
        "Turn tables of examples into a federation, split it, and keep it on disk.",
        (
            "fedrows.FederatedData",
            "fedrows.Split",
            "fedrows.Vocabulary",
            "fedrows.Hashed",
            "fedrows.Scaled",
            "fedrows.read_parquet",
            "fedrows.save_data",
            "fedrows.open_data",
            "fedrows.data.examples.Examples",
            "fedrows.data.batches.Batch",
            "fedrows.data.splits.mark_validation",
            "fedrows.data.splits.split_at_random",
            "fedrows.data.leave_one_out.leave_one_out",
            "fedrows.data.recent_labels.DECAYS",
            "fedrows.data.recent_labels.running_log_odds",
            "fedrows.data.recent_labels.with_recent_labels",
            "fedrows.files.fetch.Source",
            "fedrows.files.fetch.require",
            "fedrows.files.fetch.path",
            "fedrows.datasets.synthetic.SyntheticOptions",
            "fedrows.datasets.synthetic.load",
        ),
    ),
    Chapter(
        "Studies and comparisons",
        "Run several algorithms with several settings and seeds, and choose on validation data.",
        (
            "fedrows.compare",
            "fedrows.notebook.compare.Compared",
            "fedrows.OwnTask",
            "fedrows.tune",
            "fedrows.tuning.result.Tuned",
            "fedrows.tuning.result.Trial",
            "fedrows.Study",
            "fedrows.study.Setting",
            "fedrows.study.Results",
            "fedrows.study.FinishedRun",
            "fedrows.study.Comparison",
        ),
    ),
    Chapter(
        "Metrics",
        "Measure a model, and measure what is easy to beat.",
        (
            "fedrows.measure.evaluation.Evaluator",
            "fedrows.measure.metrics.auc",
            "fedrows.measure.metrics.grouped_auc",
            "fedrows.measure.trivial_baselines.baselines",
            "fedrows.measure.ranking_baselines.ranking_baselines",
            "fedrows.measure.new_clients.new_clients",
            "fedrows.measure.leaks.draw_count_oracle",
            "fedrows.measure.leaks.sharing_control",
        ),
    ),
    Chapter(
        "Serving and export",
        "Write a trained model into a file, load it, and ask it.",
        (
            "fedrows.load",
            "fedrows.serving.served_model.ServedModel",
            "fedrows.serving.recommend.Predictions",
            "fedrows.serving.bundle.save_bundle",
            "fedrows.runs.export.Trained",
            "fedrows.runs.export.save",
            "fedrows.runs.export.save_vocabulary",
            "fedrows.device.program.build",
            "fedrows.device.program.DeviceProgram",
        ),
    ),
    Chapter(
        "Extending",
        "The contracts of an algorithm, a model, a task and an option, and the catalogue of names.",
        (
            "fedrows.algorithm.Algorithm",
            "fedrows.algorithm.Round",
            "fedrows.algorithm.State",
            "fedrows.algorithms.fedavg.FedAvg",
            "fedrows.algorithms.fedsubavg.FedSubAvg",
            "fedrows.model.Model",
            "fedrows.models.logistic.Logistic",
            "fedrows.models.mf.build",
            "fedrows.task.Task",
            "fedrows.options.option",
            "fedrows.options.check",
            "fedrows.catalogue.algorithm",
            "fedrows.catalogue.model",
            "fedrows.catalogue.task",
            "fedrows.catalogue.names",
        ),
    ),
    Chapter(
        "Rows and rounds",
        "The rows of submodels, the heat of a row, and the parts of a simulated round.",
        (
            "fedrows.rows.params.Params",
            "fedrows.rows.params.Submodels",
            "fedrows.rows.params.Total",
            "fedrows.rows.params.take",
            "fedrows.rows.params.total",
            "fedrows.rows.heat.Heat",
            "fedrows.rows.index.Index",
            "fedrows.rows.schema.Schema",
            "fedrows.rows.schema.Table",
            "fedrows.server.begin",
            "fedrows.simulator.simulated_fleet.SimulatedFleet",
            "fedrows.simulator.fast_paths.FastPaths",
            "fedrows.simulator.fast_paths.PLAIN",
            "fedrows.simulator.fast_paths.fastest",
        ),
    ),
    Chapter(
        "Watching runs",
        "Follow a run from your own code.",
        (
            "fedrows.watch.observer.Observer",
            "fedrows.watch.observer.RunInfo",
            "fedrows.watch.observer.RoundReport",
            "fedrows.watch.watching.Watching",
            "fedrows.watch.observers.opened",
        ),
    ),
    Chapter(
        "Privacy",
        "Privacy modes, the ledger of ε, and the protocols behind them.",
        (
            "fedrows.privacy.options.Privacy",
            "fedrows.privacy.ledger.Ledger",
            "fedrows.privacy.ledger.Entry",
            "fedrows.privacy.ledger.Event",
            "fedrows.privacy.mechanism.Mechanism",
            "fedrows.privacy.mechanism.Released",
            "fedrows.privacy.mechanism.Touched",
            "fedrows.privacy.noise.GridNoise",
            "fedrows.privacy.noise.RandomBytes",
            "fedrows.privacy.counting.Counting",
            "fedrows.privacy.counting.heats",
            "fedrows.privacy.counting.table",
            "fedrows.privacy.keys.NodeKey",
            "fedrows.privacy.protocol.run",
            "fedrows.privacy.ring.Coding",
            "fedrows.privacy.secure_sum.client",
            "fedrows.privacy.secure_sum.server",
            "fedrows.privacy.terms.SumTerms",
        ),
    ),
    Chapter(
        "Deployment",
        "The apps of a deployed federation, and the messages between its machines.",
        (
            "fedrows.flower.apps.server_app",
            "fedrows.flower.apps.client_app",
            "fedrows.flower.wire.contract.DeployedTask",
            "fedrows.flower.wire.message.Message",
            "fedrows.flower.wire.message.pack",
            "fedrows.flower.wire.message.unpack",
            "fedrows.flower.wire.codings.ids_to_bytes",
            "fedrows.flower.wire.codings.numbers_to_bytes",
            "fedrows.cli.main",
        ),
    ),
    Chapter(
        "Theory",
        "The objective and the spectra behind the theorems.",
        (
            "fedrows.paper.theory.objective.Objective",
            "fedrows.paper.theory.spectrum.spectrum",
        ),
    ),
    Chapter(
        "Errors",
        "Every error that fedrows raises on purpose. All are a FedrowsError.",
        (
            "fedrows.errors.FedrowsError",
            "fedrows.errors.PlanError",
            "fedrows.errors.DataError",
            "fedrows.errors.ModelError",
            "fedrows.errors.RunFolderError",
            "fedrows.errors.BundleError",
            "fedrows.errors.MemoryShortageError",
            "fedrows.errors.NotFiniteError",
            "fedrows.errors.PluginError",
            "fedrows.errors.UnknownNameError",
            "fedrows.study.StudyError",
        ),
    ),
)
NAMES = tuple(name for chapter in CHAPTERS for name in chapter.names)
