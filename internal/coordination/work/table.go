package work

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// Bounds of Claim.Hold.
const (
	MinHold = time.Second
	MaxHold = time.Hour
)

// MaxNumber is the greatest number of a job.
const MaxNumber = 1<<63 - 1

// Key names a job: a number in a log, whose jobs are done in ascending order.
type Key struct {
	Log    string
	Number uint64 // from 1
}

// String is log#number.
func (k Key) String() string { return fmt.Sprintf("%s#%d", k.Log, k.Number) }

// Row is a pending job.
type Row struct {
	Key
	// Topic and Body are the message that brings the job to a worker: a sweep sends it
	// again when it was lost.
	Topic string
	Body  []byte
	// Created and Modified are by the back end's clock, for people and for the sweep's
	// grace. No decision of safety reads them.
	Created, Modified time.Time
	// Active: an owner works on it, or died doing so. Live: and its hold had not run out when the row was read.
	Active, Live bool
	// Owner is unique for each claim; of an inactive row, the last one's.
	Owner string
	// Increment grows with every change of the row. Every change compares it.
	Increment uint64
	// Attempts counts the claims since the last checkpoint.
	Attempts uint32
	// State is the last checkpoint; empty at first.
	State []byte
	// Fence is the greatest fence of an owner, 0 without fencing.
	Fence uint64
}

// Claim is who wants a row, and for how long.
type Claim struct {
	// Owner must be different in every claim ever made: a process's random id and a count.
	Owner string
	// Fence is the epoch of the ownership under which the owner works; 0 when there is none.
	Fence uint64
	// Hold is the longest time between two checkpoints: after it, another may claim. A
	// back end may round it up to whole seconds and may count again after a failover.
	Hold time.Duration
}

// Log is what remains of the completed jobs of a log.
type Log struct {
	Name string
	// Last is the greatest number completed; 0 when none is, or it was forgotten.
	Last uint64
	// Completed is when, by the back end's clock.
	Completed time.Time
	// Fence is the greatest fence of its owners.
	Fence uint64
	// Result is the state of the job that was completed last; empty when that is longer than MaxResult.
	Result []byte
	// Increment grows with every change.
	Increment uint64
}

// Table has one row per pending job. Every change takes effect at one moment, compares
// the row's increment and owner, and is refused with ErrMoved when it is not as the caller
// knew it. Expiry of a hold only says who may try: the comparison is what makes it safe.
type Table interface {
	// Create adds r (Key, Topic, Body, State, Fence) if it is absent and its number is above
	// the log's last. With a claim the row is active from the start. ErrExists, ErrCompleted, ErrFenced.
	Create(ctx context.Context, r Row, c *Claim) (Row, error)
	// Get reads a row; ErrNotFound.
	Get(ctx context.Context, k Key) (Row, error)
	// Claim takes r if it is inactive, its hold ran out, or c has a greater fence than the
	// owner's. ErrLive, ErrMoved, ErrFenced.
	Claim(ctx context.Context, r Row, c Claim) (Row, error)
	// Checkpoint stores state and holds the active row for hold from now; ErrMoved.
	Checkpoint(ctx context.Context, r Row, state []byte, hold time.Duration) (Row, error)
	// Release clears active, so that another may claim at once; ErrMoved. Attempts stay, unless handOver.
	Release(ctx context.Context, r Row, handOver bool) (Row, error)
	// Touch only moves Increment and Modified on, of a row that is not live; ErrLive, ErrMoved.
	Touch(ctx context.Context, r Row) (Row, error)
	// Done removes the row and records its number as completed, in one step; ErrMoved. It
	// is also how a job is cancelled: its owner then finds that the row moved on.
	Done(ctx context.Context, r Row) error
	// Rows reads a page (limit 1 to MaxPage) of the rows whose log is prefix or lies below
	// it by whole elements between slashes; "" is all. Within a log they ascend by number.
	// after is "" or the next of the page before, which is "" at the end; a page before the
	// end may have fewer than limit.
	Rows(ctx context.Context, prefix, after string, limit int) (rows []Row, next string, err error)
	// Log reads what is left of the completed jobs; a Log with Last 0 when there is nothing.
	Log(ctx context.Context, name string) (Log, error)
	// Logs reads a page of logs that have completed jobs, with prefix and pages as in Rows.
	Logs(ctx context.Context, prefix, after string, limit int) (logs []Log, next string, err error)
	// Forget removes l if it is unchanged; ErrMoved. A late duplicate of its jobs would then run again.
	Forget(ctx context.Context, l Log) error
}

// InPrefix reports whether log lies at or below prefix by whole elements.
func InPrefix(log, prefix string) bool {
	return prefix == "" || log == prefix || strings.HasPrefix(log, prefix+"/")
}

func checkName(s string) bool { return plain(s, "-_.:=/#", MaxName) }

// CheckLog refuses a name that no log can have: 1 to MaxName letters, digits and any of
// -_.:=/ without empty elements.
func CheckLog(op, name string) error {
	// Empty elements would make prefixes ambiguous.
	if !plain(name, "-_.:=/", MaxName) || strings.Contains("/"+name+"/", "//") {
		return invalid(op, name, "not the name of a log")
	}
	return nil
}

// CheckKey refuses what no job is named.
func CheckKey(op string, k Key) error {
	if err := CheckLog(op, k.Log); err != nil {
		return err
	}
	if k.Number < 1 || k.Number > MaxNumber {
		return invalid(op, k.String(), "a job's number is at least 1")
	}
	return nil
}

// CheckClaim refuses what no back end takes.
func CheckClaim(op string, k Key, c Claim) error {
	if err := CheckKey(op, k); err != nil {
		return err
	}
	if !checkName(c.Owner) {
		return invalid(op, k.String(), "owner %q", c.Owner)
	}
	if c.Fence > MaxNumber {
		return invalid(op, k.String(), "fence %d", c.Fence)
	}
	return CheckHold(op, k, c.Hold)
}

// CheckHold refuses what no back end takes.
func CheckHold(op string, k Key, hold time.Duration) error {
	if hold < MinHold || hold > MaxHold {
		return invalid(op, k.String(), "a hold of %v; %v to %v", hold, MinHold, MaxHold)
	}
	return nil
}

// CheckCreate refuses what no back end takes.
func CheckCreate(r Row, c *Claim) error {
	if err := CheckKey("create", r.Key); err != nil {
		return err
	}
	if err := CheckTopic("create", r.Topic); err != nil {
		return err
	}
	if len(r.Body) == 0 || len(r.Body) > MaxBody {
		return invalid("create", r.Key.String(), "a body of %d bytes; 1 to %d", len(r.Body), MaxBody)
	}
	if r.Fence > MaxNumber {
		return invalid("create", r.Key.String(), "fence %d", r.Fence)
	}
	if err := CheckState("create", r.Key, r.State); err != nil {
		return err
	}
	if c != nil {
		// A claim on creation has the same bounds as one that comes later.
		return CheckClaim("create", r.Key, *c)
	}
	return nil
}

// CheckState refuses a checkpoint that is too long.
func CheckState(op string, k Key, state []byte) error {
	if len(state) > MaxState {
		return invalid(op, k.String(), "a state of %d bytes; at most %d", len(state), MaxState)
	}
	return nil
}

// CheckRows refuses a page that no back end gives.
func CheckRows(op, prefix, after string, limit int) error {
	if prefix != "" {
		if err := CheckLog(op, prefix); err != nil {
			return err
		}
	}
	return CheckPage(op, prefix, after, limit)
}

// CheckCheckpoint refuses what no back end takes.
func CheckCheckpoint(k Key, state []byte, hold time.Duration) error {
	if err := CheckKey("checkpoint", k); err != nil {
		return err
	}
	if err := CheckState("checkpoint", k, state); err != nil {
		return err
	}
	return CheckHold("checkpoint", k, hold)
}
