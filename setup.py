"""The build's one step of its own: the experiments' specifications go into the package."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

HERE = Path(__file__).parent
SPECS = sorted(p.relative_to(HERE) for p in HERE.glob("experiments/P*/*.toml"))


class WithExperiments(build_py):
    """Builds the package with tunefree/experiments inside."""

    def run(self) -> None:
        """Build as usual, then copy the specifications; an editable install finds its own."""
        super().run()
        if not self.editable_mode:
            for source, target in zip(SPECS, self._targets(), strict=True):
                self.mkpath(str(target.parent))
                self.copy_file(str(source), str(target))

    def _targets(self) -> list[Path]:
        return [Path(self.build_lib) / "tunefree" / p for p in SPECS]

    def get_outputs(self, include_bytecode: bool = True) -> list[str]:
        """Return every file of the build."""
        return super().get_outputs(include_bytecode) + [str(p) for p in self._targets()]

    def get_source_files(self) -> list[str]:
        """Return what a source distribution must hold."""
        return super().get_source_files() + [str(p) for p in SPECS]


setup(cmdclass={"build_py": WithExperiments})
