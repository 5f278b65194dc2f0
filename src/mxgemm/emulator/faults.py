"""What stops a load or a run: typed exceptions that name the instruction, the resource and what is
missing.

`EmulatorError`s say that the code, the arguments or an access are wrong; `Hazard`s say that the
program relies on what the hardware does not guarantee, whether or not the values came out right.
"""

from __future__ import annotations

from mxgemm.errors import Hazard, MXError


class EmulatorError(MXError):
    """Base of what is not a hazard: bad code, bad arguments, an access outside its region."""


class LoadError(EmulatorError):
    """Code that cannot be loaded: another architecture, a broken file, missing metadata."""


class DecodeError(LoadError):
    """An instruction that the emulator does not know, with its text or bytes and its place."""


class LaunchError(EmulatorError):
    """Launch arguments that do not fit the kernel or the device."""


class _AtInstruction(Exception):
    """Where it happened: the attributes that every run-time fault carries."""

    def __init__(
        self,
        message: str,
        *,
        pc: int,
        instruction: str,
        wave: int,
        workgroup: tuple[int, int, int],
        resource: str = "",
        missing: str = "",
    ) -> None:
        self.pc = pc
        self.instruction = instruction
        self.wave = wave
        self.workgroup = workgroup
        self.resource = resource
        self.missing = missing
        text = f"pc {pc} `{instruction}`, wave {wave} of workgroup {workgroup}: {message}"
        text += f"; {resource}" if resource else ""
        text += f"; missing: {missing}" if missing else ""
        super().__init__(text)


class ExecutionError(_AtInstruction, EmulatorError):
    """Base of run-time errors that are not hazards."""


class AccessError(ExecutionError):
    """An access outside the mapped memory, the LDS or the scratch of the launch, or a transposing
    LDS load whose address is not aligned.
    """


class UnsupportedInstruction(ExecutionError):
    """A form of an instruction that the emulator does not model."""


class InstructionLimit(ExecutionError):
    """The kernel did not end within `max_instructions`."""


class Deadlock(ExecutionError):
    """Every live wave waits at a barrier that cannot complete."""


class ExecutionHazard(_AtInstruction, Hazard):
    """Base of the hazards: what the program relies on is not guaranteed."""


class MissingWait(ExecutionHazard):
    """A register is used or overwritten while a load into it is outstanding."""


class RaceHazard(ExecutionHazard):
    """Two accesses to one LDS byte, at least one a write, that no barrier and no wait order; or to
    one byte of global memory by two workgroups, the first a write.
    """


class UninitialisedRead(ExecutionHazard):
    """A read of a register or LDS byte that was never written."""


class MatrixDistance(ExecutionHazard):
    """Too few vector instructions between a matrix operation and a use of its registers."""


class ExpertWait(ExecutionHazard):
    """With expert scheduling on: a result or a source read that no s_wait_alu covers."""


class ReplayHazard(ExecutionHazard):
    """A register is overwritten while a memory instruction may still read it again, because its
    address is not known to be translated.
    """


class ExecHazard(ExecutionHazard):
    """EXEC is not all ones at a matrix operation, or zero at a transposing LDS load."""


class EncodingHazard(ExecutionHazard):
    """Operands that the hardware does not allow: alignment, the scale registers' range."""


class RegisterBank(ExecutionHazard):
    """The upper register number bits differ between two ways to an instruction."""


class BarrierHazard(ExecutionHazard):
    """A barrier signalled twice before it completed."""


class DescriptorHazard(ExecutionHazard):
    """A tensor descriptor whose fields are not allowed."""


FAULTS: dict[str, type[ExecutionError | ExecutionHazard]] = {
    "access": AccessError,
    "unsupported": UnsupportedInstruction,
    "limit": InstructionLimit,
    "deadlock": Deadlock,
    "control": AccessError,
    "missing_wait": MissingWait,
    "race": RaceHazard,
    "uninitialised": UninitialisedRead,
    "matrix_distance": MatrixDistance,
    "expert_wait": ExpertWait,
    "replay": ReplayHazard,
    "exec": ExecHazard,
    "encoding": EncodingHazard,
    "register_bank": RegisterBank,
    "barrier": BarrierHazard,
    "descriptor": DescriptorHazard,
}
