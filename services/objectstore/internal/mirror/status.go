package mirror

import (
	"errors"
	"io/fs"
)

// Inspected is what is on a drive.
type Inspected struct {
	Name    string `json:"name"`
	Record  Record `json:"record"`  // the zero one where there is none
	Opinion string `json:"opinion"` // what a start would make of it
}

// Inspect reads the records of drives that no process uses, and changes nothing. The error is that of a start.
func Inspect(drives []Drive) (list []Inspected, err error) {
	var read []Record
	for _, d := range drives {
		r, err := readRecord(d.FS)
		x := Inspected{Name: d.Name, Record: r}
		switch {
		case errors.Is(err, fs.ErrNotExist):
			x.Opinion = "no record"
		case err != nil:
			x.Opinion = err.Error()
		default:
			read = append(read, r)
		}
		list = append(list, x)
	}
	if len(read) == 0 {
		return list, nil
	}
	_, opinions, err := Begin(read)
	for i, x := range list {
		if o, ok := opinions[x.Record.Drive]; ok && x.Opinion == "" {
			list[i].Opinion = o.String()
		}
	}
	return list, err
}

// DriveStatus is what is known of one drive.
type DriveStatus struct {
	Name  string `json:"name"`
	ID    ID     `json:"id,omitempty"`
	State State  `json:"state"`
	// Cause is why it is not in sync.
	Cause  string `json:"cause,omitempty"`
	Index  bool   `json:"index,omitempty"` // it has the index
	Errors int64  `json:"errors"`          // calls that failed, since the start
	// Of a drive that is being copied to, bytes: what there is, what was compared, and what was different.
	Total    int64 `json:"total_bytes,omitempty"`
	Compared int64 `json:"compared_bytes,omitempty"`
	Written  int64 `json:"written_bytes,omitempty"`
}

// Status is what is known of all drives.
type Status struct {
	Store  ID            `json:"store"`
	At     Number        `json:"membership"`
	Drives []DriveStatus `json:"drives"`
	InSync int           `json:"in_sync"`
	// Mended counts damaged copies that were put right, and OtherReads the reads that the first drive could not serve.
	Mended     int64 `json:"mended"`
	OtherReads int64 `json:"other_reads"`
	// Halted is why nothing is written any more.
	Halted string `json:"halted,omitempty"`
}

// Status gives what is known now.
func (f *FS) Status() Status {
	f.mu.Lock()
	defer f.mu.Unlock()
	now := f.m.Now()
	s := Status{Store: f.store, At: now.At, Mended: f.mended.Load(), OtherReads: f.reads.Load()}
	if err := f.Err(); err != nil {
		s.Halted = err.Error()
	}
	for _, d := range f.drives {
		x := DriveStatus{Name: d.Name, ID: d.id, State: d.state, Index: d.id != "" && d.id == now.Index, Errors: d.errors.Load()}
		if d.cause != nil && d.state != Synced {
			x.Cause = d.cause.Error()
		}
		if d.state == Synced {
			s.InSync++
		}
		if d.state == Copying {
			x.Total, x.Compared, x.Written = f.copying.total.Load(), f.copying.done.Load(), f.copying.wrote.Load()
		}
		s.Drives = append(s.Drives, x)
	}
	return s
}
