"""Reports of the fake cluster."""

from tests.unit.client.fake_refusal import Item, Refusal, page


class FakeReports:
    """Reports of the user `ada`, by their ids."""

    def __init__(self) -> None:
        self.reports: dict[int, Item] = {}

    def get(self, path: str, query: Item) -> Item:
        if path == "/reports":
            return page([_summary(report) for report in reversed(self.reports.values())], query)
        return self._report(path)

    def post(self, body: Item) -> Item:
        number = len(self.reports) + 1
        facts = {"id": number, "user": "ada", "revision": 1, "created_ms": 1000}
        self.reports[number] = {**facts, **body, "updated_ms": 1000, "updated_by": "ada"}
        return _summary(self.reports[number])

    def put(self, path: str, body: Item) -> Item:
        report = self._report(path)
        if report["revision"] != body["revision"]:
            text = f"{report['updated_by']} changed report {report['id']} in the meantime"
            raise Refusal(409, "conflict", text)
        report.update(body, revision=body["revision"] + 1, updated_ms=2000)
        return _summary(report)

    def delete(self, path: str) -> Item:
        return _summary(self.reports.pop(self._report(path)["id"]))

    def _report(self, path: str) -> Item:
        number = int(path.rpartition("/")[2])
        if number not in self.reports:
            raise Refusal(404, "not_found", f"there is no report {number}")
        return self.reports[number]


def _summary(report: Item) -> Item:
    return {name: value for name, value in report.items() if name != "text"}
