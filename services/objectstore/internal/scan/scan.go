// Package scan reads what stored values are made of off their front: varints, and bytes and texts behind their lengths.
package scan

import "encoding/binary"

// Scanner reads a value from its beginning. It remembers the first failure, so that callers check once, at the end.
type Scanner struct {
	B   []byte // what was not read
	Bad bool   // the value ended early, or a number is none
}

// New begins to read a value, of which nothing is changed.
func New(b []byte) Scanner { return Scanner{B: b} }

// Num reads a uvarint.
func (s *Scanner) Num() uint64 {
	v, n := binary.Uvarint(s.B)
	if n <= 0 {
		s.Bad, s.B = true, nil
		return 0
	}
	s.B = s.B[n:]
	return v
}

// Byte reads a byte.
func (s *Scanner) Byte() byte {
	if len(s.B) == 0 {
		s.Bad = true
		return 0
	}
	c := s.B[0]
	s.B = s.B[1:]
	return c
}

// Bytes reads a length, and so many bytes, which stay those of the value.
func (s *Scanner) Bytes() []byte {
	n := s.Num()
	if n > uint64(len(s.B)) {
		s.Bad, s.B = true, nil
		return nil
	}
	v := s.B[:n]
	s.B = s.B[n:]
	return v
}

// Text is Bytes as a string of its own.
func (s *Scanner) Text() string { return string(s.Bytes()) }

// Rest gives all that was not read.
func (s *Scanner) Rest() string { return string(s.B) }
