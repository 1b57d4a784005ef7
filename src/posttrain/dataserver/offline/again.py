"""Which of the completions that were graded before can be graded again."""

from collections.abc import Iterator
from dataclasses import replace

from posttrain.dataserver.journal.records import MAX_PROMPT_CHARS, storable, without_middle
from posttrain.dataserver.offline.earlier import Earlier, EarlierCompletions
from posttrain.dataserver.offline.reasons import Reasons
from posttrain.dataserver.offline.wording import counted, say
from posttrain.dataserver.runtime import Loaded
from posttrain.errors import DataError


class Again:
    """Goes through them once; what is left out is counted."""

    def __init__(self, loaded: Loaded, earlier: EarlierCompletions) -> None:
        self._loaded = loaded
        self._earlier = earlier
        self._changed_rows = 0
        self.count = earlier.count
        """How many there are, with those that are left out."""
        self.skipped = Reasons()
        """Why some were left out."""

    def __iter__(self) -> Iterator[Earlier]:
        """Those that can be graded, each with the sample id that its row has now."""
        for each in self._earlier:
            try:
                again = _as_it_is_now(self._loaded, each)
            except DataError as error:
                self.skipped.add(str(error), each.place)
                continue
            self._changed_rows += again is not each
            yield again

    def nothing_usable(self) -> DataError:
        """The error that tells why none can be graded."""
        return DataError("\n".join(["nothing can be graded again:", *self.skipped.lines()]))

    def show_left_out(self) -> None:
        """Print what was left out, and what was graded by a row that is not what it was."""
        if self._changed_rows:
            answers = counted(self._changed_rows, "completion")
            say(f"graded by rows that ask the same as before and differ in the rest: {answers}")
        if self.skipped.total:
            left_out = counted(self.skipped.total, "completion")
            say(f"left out: {left_out} that cannot be graded again", *self.skipped.lines())


def _as_it_is_now(loaded: Loaded, earlier: Earlier) -> Earlier:
    """The completion under the sample id that its row has now, as when its gold was corrected; DataError if in vain."""
    if not earlier.is_whole:
        raise DataError("not all of the completion is kept; see journal.max_completion_chars")
    dataset, key, _ = ["", "", *earlier.sample_id.rsplit(":", 2)][-3:]
    if dataset not in loaded.datasets:
        raise DataError(f"the config has no data set {dataset!r}")
    index = loaded.datasets[dataset].find(key)
    if index is None:
        raise DataError(f"its row in the data set {dataset} is gone")
    sample_id = loaded.samples.sample_id(dataset, index)
    if sample_id == earlier.sample_id:
        return earlier
    prompt = loaded.samples.target(sample_id).prompt
    if earlier.prompt not in (prompt, storable(without_middle(prompt, MAX_PROMPT_CHARS))):
        raise DataError(f"its row in the data set {dataset} asks something else now")
    return replace(earlier, sample_id=sample_id)
