package run

import (
	"crypto/rand"
	"strings"
)

// RandomID is a name that nobody else has: 26 characters of a to z and 2 to 7, 130 random bits.
func RandomID() string { return strings.ToLower(rand.Text()) }
