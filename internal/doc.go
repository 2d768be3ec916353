// Package internal is the room of small pieces that three or more rooms use: a client of the agent's process service
// (agentrpc), and what set-up is made of (buildcache, cpio, debian, kmod).
package internal
