package work_test

import (
	"testing"

	"lightmetrics.dev/lightmetrics/internal/harness/mutants"
)

// planted are known bugs of the job log, the workers and the sweep.
var planted = []mutants.Mutant{
	{Name: "a completed job is created again", File: "decide.go", Old: "case r.Number <= log.Last:", New: "case false:"},
	{Name: "changes compare nothing", File: "decide.go", Old: "cur != nil && cur.Increment == r.Increment && cur.Owner == r.Owner", New: "cur != nil"},
	{Name: "a checkpoint keeps the old state", File: "decide.go", Old: "n.State, n.Live, n.Attempts = state, true, 0", New: "n.Live, n.Attempts = true, 0"},
	{Name: "progress does not make attempts good", File: "decide.go", Old: "n.State, n.Live, n.Attempts = state, true, 0", New: "n.State, n.Live = state, true"},
	{Name: "done does not record the number", File: "decide.go", Old: "log.Last = max(log.Last, r.Number)", New: ""},
	{Name: "a smaller fence claims", File: "decide.go", Old: "case c.Fence < cur.Fence:", New: "case false:"},
	{Name: "jobs do not wait for their predecessors", File: "worker.go", Old: "return r.Number >= k.Number, nil // the log's lowest", New: "return true, nil"},
	{Name: "a crashing job is tried for ever", File: "worker.go", Old: "row.Attempts >= w.cfg.MaxAttempts && !row.Live", New: "false && !row.Live"},
	{Name: "a redriven job is buried unseen", File: "worker.go", Old: "!row.Live && m.Tries > 1", New: "!row.Live"},
	{Name: "a job that is not due is done", File: "worker.go", Old: "case errors.As(err, &early):", New: "case false:"},
	{Name: "a result is that of the job before", File: "decide.go", Old: "log.Result = cur.State", New: ""},
	{Name: "a lost worker goes on", File: "job.go", Old: "		j.lost = err\n		return err\n", New: "		return nil\n"},
	{Name: "an unknown end deletes the message", File: "job.go", Old: "			unknown = true\n		case errors.Is(err, ErrUnavailable):\n		case unknown", New: "			return Completed, w.queue.Bury(ctx, *j.msg, \"\")\n		case unknown"},
	{Name: "a hand-over counts as an attempt", File: "job.go", Old: "j.release(ctx, true)", New: "j.release(ctx, false)"},
	{Name: "the sweep does not note what it sent", File: "sweep.go", Old: "n.Sent++", New: "n.Sent++\n	return nil"},
	{Name: "the sweep wakes poison", File: "sweep.go", Old: "case r.Attempts >= s.MaxAttempts:", New: "case false:"},
	{Name: "submit sends without a row", File: "sweep.go", Old: "switch _, err := t.Create(ctx, r, nil); {", New: "switch err := error(nil); {"},
}

func TestMutantsAreCaught(t *testing.T) {
	mutants.Check(t, mutants.List{Mutants: planted, Skip: "Chain"})
}
