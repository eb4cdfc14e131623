package rollup

import "fmt"

// Counts say where the records of the inputs went.
type Counts struct {
	// Inputs is the number of records by the inputs' identities.
	Inputs uint64 `json:"inputs"`
	// Published records are in this hour.
	Published uint64 `json:"published"`
	// OtherHours are records whose time is in another hour.
	OtherHours uint64 `json:"other_hours"`
	// Overlapped are records whose sequence number another input has won.
	Overlapped uint64 `json:"overlapped"`
	// Duplicates share series and nanosecond with a record that is published.
	Duplicates uint64 `json:"duplicates"`
}

// ConservationError says that records were lost or duplicated, so nothing may be published.
type ConservationError struct{ Counts Counts }

func (e *ConservationError) Error() string {
	c := e.Counts
	return fmt.Sprintf("records are not conserved: %d in, %d published + %d in other hours + %d overlapped + %d duplicates out",
		c.Inputs, c.Published, c.OtherHours, c.Overlapped, c.Duplicates)
}

// Conserved checks that every record of the inputs is counted in exactly one place. Error: *ConservationError.
func (c Counts) Conserved() error {
	if c.Inputs != c.Published+c.OtherHours+c.Overlapped+c.Duplicates {
		return &ConservationError{c}
	}
	return nil
}

// Add sums the counts of disjoint parts of one plan, or of a generation and what the next one adds.
func (c *Counts) Add(o Counts) {
	c.Inputs += o.Inputs
	c.Published += o.Published
	c.OtherHours += o.OtherHours
	c.Overlapped += o.Overlapped
	c.Duplicates += o.Duplicates
}
