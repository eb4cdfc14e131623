package qualify

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"
)

// Status of a check.
type Status string

// Statuses.
const (
	Pass    Status = "pass"
	Fail    Status = "FAIL"
	Skipped Status = "skipped"
)

// Row is the outcome of one check. Took is in nanoseconds.
type Row struct {
	Check  string        `json:"check"`
	Status Status        `json:"status"`
	Detail string        `json:"detail,omitempty"`
	Took   time.Duration `json:"took_ns"`
	// Err of a failed check, for errors.Is: objstore.ErrDenied tells bad credentials from a bad store.
	Err error `json:"-"`
}

// Report of a run, a row per check in the order in which they ran.
type Report struct {
	RunID string `json:"run_id"`
	Rows  []Row  `json:"rows"`
}

// Table writes the report as a text table.
func (r Report) Table(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CHECK\tSTATUS\tTOOK\tDETAIL")
	for _, row := range r.Rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", row.Check, row.Status, row.Took.Round(10*time.Microsecond), row.Detail)
	}
	return t.Flush()
}
