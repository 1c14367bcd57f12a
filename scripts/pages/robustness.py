"""Pages of serving, faults and graders."""

from __future__ import annotations

from .page import FIXED, RATIOS, Page, Row, command, listed, proportion, share, table


def serve(data: Row) -> Page:
    rows = []
    for key, row in data["http"].items():
        method, _, clients = key.rpartition("/")
        rows.append(row | {"method": method, "clients": clients, "bare": data["bare"][key]["requests_per_second"]})
    columns = {
        "method": "{method}",
        "clients": "{clients}",
        "p50, ms": "{p50_ms:.1f}",
        "p95, ms": "{p95_ms:.1f}",
        "p99, ms": "{p99_ms:.1f}",
        "requests/s": "{requests_per_second:.0f}",
        "sampled tokens/s": "{sampled_tokens_per_second:,.0f}",
        "bare: requests/s": "{bare:.0f}",
    }
    one, sixteen = (data["http"][f"sample/{clients}"]["requests_per_second"] for clients in (1, 16))
    return Page(
        "Serving",
        f"{one:.0f} plain answers a second to one client, {sixteen:.0f} to sixteen",
        "The embedded student behind the OpenAI-compatible server on loopback, clients on the same cores. `bare` is the same"
        " work without HTTP.",
        {
            "Problems": "embedded questions",
            "Seeds": FIXED,
            "Tokens": "sampled a second, in the table",
            "Cores": str(data["cores"]),
            "Command": command(data, "python benchmarks/serve.py"),
        },
        table(rows, columns),
        ["A tiny model on a CPU: this measures the server, not a useful model.", RATIOS],
    )


def serve_against(data: Row) -> Page:
    def paired(row: Row) -> Row:
        this, old = (sorted(row["requests_per_second"][name]) for name in ("this", "old"))
        middle = len(this) // 2
        ratios = [new / before for new, before in zip(*row["requests_per_second"].values(), strict=True)]
        return row | {"this": this[middle], "old": old[middle], "ratio": this[middle] / old[middle]} | {
            "least": min(ratios), "most": max(ratios)
        }  # fmt: skip

    rows = [paired(row) for row in data["rows"]]
    below = sum(row["ratio"] < 1 for row in rows)
    columns = {
        "method": "{method}",
        "clients": "{clients}",
        f"requests/s, {data['old']}": "{old:.0f}",
        f"requests/s, {data['version']}": "{this:.0f}",
        "ratio": "{ratio:.2f}",
        "of single turns": "{least:.2f} to {most:.2f}",
    }
    return Page(
        "The server beside an older one",
        f"throughput {min(row['ratio'] for row in rows):.2f} to {max(row['ratio'] for row in rows):.2f} times that of"
        f" version {data['old']}, below it in {below} of {len(rows)} rows",
        "The server of this version and that of an older one, asked in turns by the same clients in one run. Medians over the"
        " turns.",
        {
            "Problems": "embedded questions",
            "Seeds": FIXED,
            "Tokens": "not counted",
            "Cores": str(data["cores"]),
            "Turns": f"{data['turns']} of each server and row, {data['seconds']:g} s each",
            "Command": command(data, "python benchmarks/serve.py --against FOLDER"),
        },
        table(rows, columns),
        ["A tiny model on a CPU, clients on the same cores: this measures the servers, not a model.", RATIOS],
    )


def crowd_row(clients: str, row: Row) -> Row:
    refused = row["errors"].get("503", 0)
    return row | {"clients": clients, "refused": refused, "others": sum(row["errors"].values()) - refused}


def crowds(data: Row) -> Page:
    columns = {
        "clients": "{clients}",
        "requests": "{requests:,}",
        "a second": "{requests_per_second:.0f}",
        "no turn before the deadline (503)": "{refused}",
        "other errors": "{others}",
        "ended by the deadline": "{deadlines_hit:,}",
        "over 100 ms late": "{over_100_ms_late:,}",
        "by the client's clock": "{over_100_ms_late_at_the_client:,}",
        "worst, ms": "{late_max_ms:.0f}",
        "cores that other processes took": "{cores_of_others:.1f}",
        "memory, MiB": "{before[rss_mib]:,.0f} to {after[rss_mib]:,.0f}",
        "searches alive afterwards": "{after[live_searches]:.0f}",
    }
    rows = [crowd_row(clients, row) for clients, row in data["crowds"].items()]
    worst = max(row["over_100_ms_late"] / row["deadlines_hit"] for row in rows)
    return Page(
        "Deadlines of a crowded server",
        f"{1 - worst:.1%} of the answers that a deadline ended came within 100 ms of it, at {rows[-1]['clients']} clients",
        "All methods mixed, each request with a deadline of 2 s or 500 ms, each client with a connection of its own, clients"
        " and server on the same cores. `serve.concurrent` is 64: of 200 clients most wait for a turn, and some for nothing.",
        {
            "Problems": "embedded questions",
            "Seeds": FIXED,
            "Tokens": "see requests",
            "Cores": str(data["cores"]),
            "Command": command(data, f"python benchmarks/serve.py --crowds {round(rows[0]['seconds'])}"),
        },
        table(rows, columns),
        [
            "Late is by the server's clock, from reading the request's headers to the answer; the client's clock counts the way"
            " and the client's own waits too, and all clients are one Python process.",
            "Where other processes take the cores, both clocks are theirs as well.",
        ],
    )


def soak(data: Row) -> Page:
    errors, after = sum(data["errors"].values()), data["after"]
    figures = {
        "requests": f"{data['requests']:,} ({data['requests_per_second']:.0f} a second)",
        "errors": f"{errors}",
        "clients that broke their connection in the middle": f"{data['clients_gone']:,}",
        "wrong requests, by answer": ", ".join(f"{code}: {count:,}" for code, count in data["wrong_requests"].items()),
        "memory, MiB": f"{data['before']['rss_mib']:,.1f} to {after['rss_mib']:,.1f}",
        "memory's slope after the first third": f"{data['rss_mib_an_hour']:+.1f} MiB an hour",
        "alive afterwards": f"{after['live_requests']:.0f} requests, {after['live_searches']:.0f} searches,"
        f" {after['engine_live_rows'] + after['engine_waiting_rows']:.0f} rows of the engine",
        "ended by the deadline": f"{data['deadlines_hit']:,}",
        "of them over 100 ms late": f"{data['over_100_ms_late']:,}, the worst {data['late_max_ms']:.0f} ms",
        "cores that other processes took": f"{data['cores_of_others']:.1f} of {data['cores']}",
        "the machine's own longest stall": f"{data['machine_stall_max_ms']:.0f} ms",
        "exit code after SIGTERM": f"{data['exit_code']}",
    }
    rows = ({"figure": name, "value": found} for name, found in figures.items())
    return Page(
        "A soak of the server",
        f"{errors} errors in {data['requests']:,} requests over {data['minutes']:g} minutes",
        "64 clients with all methods, while every second a client breaks its connection in the middle of a search and another"
        " sends a request that is wrong.",
        {
            "Problems": "embedded questions",
            "Seeds": FIXED,
            "Tokens": f"{data['sampled_tokens_per_second']:,.0f} sampled a second",
            "Cores": str(data["cores"]),
            "Command": command(data, f"python benchmarks/serve.py --soak {data['minutes']:g}"),
        },
        table(rows, {"figure": "{figure}", "value": "{value}"}),
        ["A tiny model on a CPU, clients on the same cores.", RATIOS],
    )


def large_journal(data: Row) -> Page:
    first, last = data["sizes"][0], data["sizes"][-1]

    def cells(found: Row) -> Row:
        ways = {}
        for way, alone in data["libraries"].items():
            one = found["ways"].get(way)
            more = None if one is None else max(one["peak_mib"] - alone["peak_mib"], 0)
            ways[way] = "" if one is None else f"{one['peak_mib']:,.0f} ({more:,.0f}), {one['cpu_seconds']:,.1f} s"
        return {**found, **ways, "page": f"{found['page_mb']:.1f}" if "page_mb" in found else ""}

    none = {"megabytes": "one record", "records": 1, "ways": data["libraries"]}
    columns = {
        "MB": "{megabytes}",
        "records": "{records:,}",
        **{way: f"{{{way}}}" for way in data["ways"]},
        "page, MB": "{page}",
    }
    grown = last["ways"]["open"]["peak_mib"] - first["ways"]["open"]["peak_mib"]
    return Page(
        "Large journals",
        f"{last['megabytes']:,} MB are opened in {last['ways']['open']['peak_mib']:,.0f} MiB, libraries included",
        "Peak resident memory in MiB (in brackets: more than with one record) and CPU seconds of a process that uses a journal."
        f" From {first['megabytes']} to {last['megabytes']:,} MB opening takes {grown:,.0f} MiB more: keys and places.",
        {
            "Problems": f"{data['questions']} embedded training questions, repeated under fresh ids",
            "Seeds": str(data["seed"]),
            "Tokens": "not counted",
            "Command": command(data),
        },
        [
            *table(map(cells, (none, *data["sizes"])), columns),
            *(f"- {way}: {what}." for way, what in data["ways"].items()),
            "",
        ],
        [
            "Empty cells were not tried. `keep` is what `train --resume` did before.",
            "Records of small trees, 2 kB each: of larger ones there are fewer a megabyte, and fewer keys and places.",
            "CPU seconds are of one machine, which may have been busy: compare them with each other.",
        ],
    )


def kill_test(data: Row) -> Page:
    figures = {
        "processes killed": ", ".join(f"{kind} {count}" for kind, count in data["kills"].items()),
        "trees at the end": f"{data['trees']} of {data['questions']}",
        "lost, twice, half written": f"{data['lost']}, {data['duplicate']}, {data['half_written']}",
        "equal to an undisturbed run's": f"{data['same_as_undisturbed']} of {data['questions']}",
        "sessions": data["sessions"],
        "seconds": f"{data['seconds']:.0f}",
    }
    rows = ({"figure": name, "value": found} for name, found in figures.items())
    return Page(
        "Nothing is lost when processes die",
        f"{data['kills_in_all']} kills, {data['lost']} trees lost, {data['duplicate']} twice",
        "A sampling run under Ray whose processes are killed with SIGKILL at random moments. After each death of the driver it"
        " is started again with `--resume`.",
        {
            "Problems": f"{data['questions']} embedded training questions",
            "Seeds": str(data["seed"]),
            "Tokens": "not counted",
            "Command": command(data),
        },
        table(rows, {"figure": "{figure}", "value": "{value}"}),
        [
            "Equal means the same tree, costs aside and log-probabilities to three digits.",
            "One machine with two cores.",
        ],
    )


def kill_commands(data: Row) -> Page:
    rows = [{"name": name, "differing": len(row["differ"]), **row} for name, row in data["commands"].items()]
    columns = {
        "command": "`{name}`",
        "kills": "{kills}",
        "starts that failed": "{failures}",
        "files": "{files}",
        "that differ from the undisturbed run's": "{differing}",
        "seconds, undisturbed": "{undisturbed_seconds:.0f}",
        "with all kills": "{seconds:.0f}",
    }
    kills, differ = (sum(row[name] for row in rows) for name in ("kills", "differing"))
    return Page(
        "Every command, killed",
        f"{kills} kills, {differ} files that differ from an undisturbed run's",
        "Each command that keeps a run is killed with SIGKILL at random moments, loading included, and started again as its"
        " user would, until it is through.",
        {
            "Problems": "embedded questions, a few dozen a command",
            "Seeds": str(data["seed"]),
            "Tokens": "not counted",
            "Command": command(data),
        },
        table(rows, columns),
        [
            "Compared are weights, by the byte, and tables of results, but for seconds and for what was cached.",
            "Tiny sizes on one machine with two cores. `sft` starts anew, and `ladder` is made of these commands.",
        ],
    )


def reliability(data: Row) -> Page:
    rows = ({"name": name, **found} for name, found in data["parts"].items())
    columns = {
        "part": "{name}",
        "what is tried": "{what}",
        "tries": "{tries:,}",
        "failures": "{failures}",
        "seconds": "{seconds:.0f}",
    }
    failures = [f"- {name}: {one}" for name, found in data["parts"].items() for one in found["examples"]]
    return Page(
        "Attacks on all of it",
        f"{data['tries']:,} tries, {data['failures']} failures",
        "Bad input, flipped bits, power cuts, kills, limits of the disk, hostile clients and teachers, by one command. A try"
        " fails where something ends in a traceback, hangs, is lost, is there twice, or differs from an undisturbed run.",
        {
            "Problems": "embedded training questions, where something is searched",
            "Seeds": str(data["seed"]),
            "Tokens": "not counted",
            "Command": command(data),
        },
        [*table(rows, columns), *(["", "## Failures", "", *failures] if failures else [])],
        [
            "A power cut leaves names as they were last synced or as they were, and of bytes that were not synced nothing, all,"
            " a part, or zeros. What the libraries write by themselves is seen at the next write, rename or sync of ours.",
            "One machine with two cores; the student is small, so that trees take milliseconds.",
            "Kills of commands and under Ray, faulty teachers, fuzzed answers, deadlines and the soak have pages of their own,"
            " with more tries.",
        ],
    )


def teacher_faults(data: Row) -> Page:
    rows = []
    for name, found in data["scenarios"].items():
        if "trees" not in found:
            continue
        limits = (f"{limit:,} {key}" for key, limit in found["budget"]["limits"].items() if limit is not None)
        rows.append(
            found
            | {
                "name": name,
                "ended": f"{sum(found['trees']['ended'].values())} of {found['trees']['asked']}",
                "limit": ", ".join(limits) or "none",
                "held": "all" if all(found["verdicts"].values()) else "NOT all",
            }
        )
    columns = {
        "scenario": "{name}",
        "requests": "{requests:,}",
        "trees ended": "{ended}",
        "most attempts": "{most_attempts_of_a_request}",
        "charged": "${charged_by_server[dollars]:.3f}, {charged_by_server[tokens]:,} tokens",
        "limit": "{limit}",
        "checks held": "{held}",
    }
    good, poor = (rows[0]["ledgers"][f"bench/{name}"] for name in ("good", "poor"))
    return Page(
        "Teachers that misbehave",
        f"{data['requests']:,} requests to a faulty server, {'every' if data['held'] else 'NOT every'} check held",
        "Real searches ask four remote teachers on a loopback server that injects more than 20 kinds of faults and keeps its"
        " own books. Checks: no tree is lost, attempts are bounded, the ledgers equal the server's books where answers arrived,"
        " budgets hold, no connection or task is left, the key is on no disk.",
        {
            "Problems": "embedded training questions, as many as the trees",
            "Seeds": FIXED,
            "Tokens": "charged by the server, in the table",
            "Command": command(data),
        },
        [
            *table(rows, columns),
            "Reservations are careful: an answer that never arrived is booked at the most it could have cost.",
            "",
            f"In the first scenario the good teacher's steps were worth {good['mean_value']:.3f} to the student and the poor"
            f" one's {poor['mean_value']:.3f}; they were asked {good['calls']} and {poor['calls']} times.",
        ],
        ["No real provider was called: the model ids of `config/teacher_models.yaml` are untested."],
    )


def grade_agreement(data: Row) -> Page:
    names = {"ours": "this package", "math-verify": "math-verify", "string": "string match"}
    rows = []
    for source in ("gsm8k", "math", "hotpotqa"):
        found = data[source]
        marks = [(mark, count) for marks in found["patterns"].values() for mark, count in marks.items()]
        pairs = sum(count for _, count in marks)
        right = {
            name: share(proportion(sum(count for mark, count in marks if mark[i] == "+"), pairs))
            for i, name in enumerate(found["graders"])
        }
        rows.append(
            {
                "source": source,
                "good": found["rows"] - len(found["self_failures"]),
                "all": found["rows"],
                "pairs": pairs,
            }
            | right
        )
    columns = {"rows": "{source}", "gold equals itself": "{good:,} of {all:,}", "pairs": "{pairs:,}"}
    return Page(
        "The graders on real rows",
        f"{sum(row['good'] for row in rows):,} of {sum(row['all'] for row in rows):,} gold answers equal themselves",
        "Every gold answer is graded against itself. Then pairs are made from the rows (other spellings of the gold answer, and"
        " wrong answers) and three graders say correct or wrong: this package's, math-verify alone, and plain string match.",
        {
            "Problems": "GSM8K train and test, MATH-500, part of HotpotQA's validation split",
            "Seeds": "fixed in the command",
            "Tokens": "none: no model is asked",
            "Command": command(data),
        },
        table(rows, columns | {text: f"{{{name}}}" for name, text in names.items()}),
        [
            "Most pairs are easy, pairs of one row are not independent, and one guard was added after seeing them.",
            "A verdict of this table is about spellings. It does not show that every wrong answer is found.",
        ],
    )


def answers_fuzz(data: Row) -> Page:
    rows = [{"kind": name, **tally} for name, tally in data["kinds"].items()]
    all_but, limits = data["totals"]["all but limits"], data["totals"]["limits"]
    slowest = data["slowest"]
    wrong = all_but["false_positives"] + all_but["false_negatives"]
    columns = {
        "kind": "{kind}",
        "pairs": "{pairs:,}",
        "false positives": "{false_positives:,}",
        "false negatives": "{false_negatives:,}",
    }
    return Page(
        "Answers, on generated pairs whose truth is known",
        f"{wrong:,} of {all_but['pairs']:,} verdicts wrong outside the known limits",
        "Pairs of an answer and a gold answer are generated so that the right verdict is known: the same number in two"
        ' writings, another number, and what only contains the number. A row named "limit:" is known to fail and shows by how'
        " much. The rest of the cases is random text on which nothing may crash.",
        {
            "Problems": f"{data['num']:,} generated cases",
            "Seeds": str(data["seed"]),
            "Tokens": "none: no model is asked",
            "Command": command(data),
        },
        [
            *table(rows, columns),
            f"Together with the limits: {limits['false_positives']:,} false positives and {limits['false_negatives']:,} false"
            f" negatives of {limits['pairs']:,} pairs that are hard on purpose. Random texts: {data['random_texts']:,}; laws"
            f" broken: {listed(data['broken_laws'])}. The slowest call took {slowest['milliseconds']} ms for"
            f" {slowest['characters']:,} characters.",
        ],
        ["Which kinds there are was chosen by hand, so a new kind of answer can still be read wrongly."],
    )


def reasoning_gym(data: Row) -> Page:
    rows = data["rows"]
    short = [row for row in rows if row["why"]]
    fine, loaded = len(rows) - len(short), sum(row["loads"] for row in rows)
    return Page(
        "reasoning-gym's tasks as sources",
        f"{fine} of {len(rows)} tasks of reasoning-gym load and grade all their own gold answers as 1",
        f"Every task of reasoning-gym {data['version']} is opened as `reasoning-gym:TASK`. Its first"
        f" {data['problems_a_split']} problems of {' and '.join(data['splits'])} are loaded, and their gold answers are graded"
        " as a response's last line `#### ANSWER` is.",
        {
            "Problems": f"{data['problems_a_split']} a split and task",
            "Seeds": "fixed in the source",
            "Tokens": "none: no model is asked",
            "Command": command(data),
        },
        [
            "",
            f"{loaded} of {len(rows)} tasks load and print a prompt. Those that fall short:",
            "",
            *table(
                [{"task": f"`{row['task']}`", "why": row["why"].replace("|", "\\|")} for row in short],
                {"task": "{task}", "why": "{why}"},
            ),
        ],
        [
            "A gold answer that scores 1 does not show that every right answer does, or that wrong ones score less.",
            "Tasks are taken with reasoning-gym's own settings of difficulty.",
        ],
    )


# In the order of the index.
PAGES = (
    large_journal,
    serve,
    serve_against,
    crowds,
    soak,
    reliability,
    kill_test,
    kill_commands,
    teacher_faults,
    grade_agreement,
    answers_fuzz,
    reasoning_gym,
)
