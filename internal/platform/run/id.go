package run

import (
	"crypto/rand"
	"strings"
)

// RandomID gives a unique name: 26 characters of a to z and 2 to 7, which are 130 random bits.
func RandomID() string { return strings.ToLower(rand.Text()) }
